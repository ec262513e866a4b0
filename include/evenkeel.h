/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The two calls of the IAS scheduler (Yamada, Kusakabe, section 3) for C programs: they ask the keel
 * that runs (`evenkeel sched --order ias`) through its control socket. Both return 0, or a negative
 * error number: -ENOENT or -ECONNREFUSED without a keel, -EPERM for what belongs to another user
 * or a bonus beyond an ordinary user's quota, -ENOSPC for more address spaces than the quotas allow,
 * -ESRCH for no such process, -EINVAL for a value that cannot be or another order policy, -EMFILE if
 * the keel has too few file descriptors.
 *
 *	#include <evenkeel.h>
 *
 *	set_ias_agg(getpid(), 1, 1, 3, 0);	(my threads run ahead by 3 times what ran last)
 */
#ifndef EVENKEEL_H
#define EVENKEEL_H

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>
#include <unistd.h>

#ifndef EVENKEEL_SOCKET
#define EVENKEEL_SOCKET "/run/evenkeel/keel.sock"
#endif

/* Sends one line, and returns what the answer says. */
static inline int evenkeel_ask(const char *request)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX, .sun_path = EVENKEEL_SOCKET };
	size_t left = strlen(request), got = 0;
	/* The answer begins with its error number; the rest of it is not needed. */
	char answer[32] = "";
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), error = 0;
	ssize_t done;

	if (fd < 0)
		return -errno;
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
		error = -errno;
	while (!error && left) {
		done = send(fd, request, left, MSG_NOSIGNAL);
		if (done < 0 && errno != EINTR)
			error = -errno;
		if (done > 0) {
			request += done;
			left -= (size_t)done;
		}
	}
	while (!error && got < sizeof(answer) - 1 && !strchr(answer, ',')) {
		done = read(fd, answer + got, sizeof(answer) - 1 - got);
		if (done < 0 && errno != EINTR)
			error = -errno;
		if (done == 0)
			error = -EPIPE;
		if (done > 0)
			got += (size_t)done;
	}
	close(fd);
	if (error)
		return error;
	return sscanf(answer, "{\"errno\":%d", &error) == 1 ? -error : -EPROTO;
}

/*
 * The threads of the process `pid` are aggregated (`agg` 1) or not (0). `bonus_type` 0:
 * `bonus_value` is in ns of vruntime; 1: it multiplies how long the last task ran on the CPU. They
 * are preferred at most `limit` times in a row on a CPU; 0: no limit.
 */
static inline int set_ias_agg(pid_t pid, int agg, int bonus_type, unsigned long long bonus_value,
			      unsigned long long limit)
{
	char request[256];

	snprintf(request, sizeof(request),
		 "{\"req\":\"ias_agg\",\"args\":{\"pid\":%lld,\"agg\":%d,\"bonus_type\":%d,"
		 "\"bonus_value\":%llu,\"limit\":%llu}}\n",
		 (long long)pid, agg, bonus_type, bonus_value, limit);
	return evenkeel_ask(request);
}

/*
 * One number for each of the `count` CPUs: 2k for the master of group k, 2k + 1 for a slave of it. Root
 * only.
 */
static inline int set_ias_alloc(const unsigned short *roles, unsigned int count)
{
	/* Five digits and a comma for each of the most CPUs that the keel knows. */
	char request[64 + 6 * 1024];
	unsigned int at = 0;
	size_t end;

	if (count > 1024)
		return -EINVAL;
	end = (size_t)snprintf(request, sizeof(request), "{\"req\":\"ias_alloc\",\"args\":{\"roles\":[");
	for (at = 0; at < count; at++)
		end += (size_t)snprintf(request + end, sizeof(request) - end, "%s%u", at ? "," : "",
					(unsigned int)roles[at]);
	snprintf(request + end, sizeof(request) - end, "]}}\n");
	return evenkeel_ask(request);
}

#endif
