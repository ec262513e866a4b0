// SPDX-License-Identifier: GPL-2.0-only
//
// The option --evenkeel of srun, sbatch and salloc: a SPANK plugin (spank(7)) that has the tasks of a
// job run under `evenkeel run`. It never fails a job: where evenkeel cannot be used, the tasks run
// without it, and the first task of each node says why on its standard error.
//
//   in the job's life       callback          what is done
//   srun, sbatch, salloc    check_option      the option's value is checked, before anything starts
//   each node, each step    user_init         is evenkeel there, and of the plugin's own version?
//   each task, before exec  task_init         the path of its program is replaced by that of evenkeel
//   srun, as it ends        exit              the line of a step on several nodes is printed, where the
//                                             nodes share the directory of their records
//
// The task is not replaced by an exec in task_init: Slurm runs TaskProlog, sets the user's limits and
// TMPDIR after that callback, and all of it would be lost. Two variables tell evenkeel what to run
// (product/evenkeel/src/task.rs); it removes them. All else, the balancer of the step included, is
// evenkeel's own (docs/adr/0011-slurm-by-wrapping.md).
//
// Built for one release of Slurm, that of the header. Slurm does not load it under another one; should a
// build of Slurm do so, nothing is replaced.

// For pipe2 and setresuid.
#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

#ifndef EVENKEEL_VERSION
#error "build this by packaging/slurm/build"
#endif

SPANK_PLUGIN(evenkeel, 1);

// How long an answer of evenkeel may take before a job starts, in ms. On a file system that hangs, the
// job hangs all the same: it could not start its program either.
#define PATIENCE_MS 5000

// The same as srun ends. The records lie in another file system than the program, perhaps: should that
// one hang, the job must not notice.
#define PATIENCE_AT_EXIT_MS 1000

// How long a killed evenkeel is waited for, in ms. A process that waits for a file system that hangs
// does not end by SIGKILL either. It is left then.
#define PATIENCE_FOR_END_MS 500

// The longest PATH that is looked at.
#define MAX_PATH_LIST 65536

#define USAGE "expected run, shares, threads=K (K from 2 to 16), watch or off"

static char program[PATH_MAX] = EVENKEEL_PROGRAM;
// The options of `evenkeel run`; only used where the job asked for evenkeel.
static char options[32];
static bool is_wanted;
static bool is_shares;
// Why the tasks run without it; empty: they do not.
static char why_not[PATH_MAX + 256];
// In srun: the step that it has started.
static bool has_step;
static uint32_t own_job, own_step;

// The value of --evenkeel. False if there is no such value. A missing one arrives as NULL, "" or
// "(null)", depending on the command and the release.
static bool parse_option(const char *value)
{
	char *end;
	long per_cpu;

	is_wanted = true;
	is_shares = false;
	options[0] = '\0';
	if (!value || !*value || !strcmp(value, "(null)") || !strcmp(value, "run"))
		return true;
	if (!strcmp(value, "off")) {
		is_wanted = false;
		return true;
	}
	if (!strcmp(value, "watch")) {
		strcpy(options, "--dry-run");
		return true;
	}
	if (!strcmp(value, "shares")) {
		is_shares = true;
		strcpy(options, "--shares");
		return true;
	}
	if (!strncmp(value, "threads=", strlen("threads="))) {
		value += strlen("threads=");
		per_cpu = strtol(value, &end, 10);
		if (end != value && !*end && per_cpu >= 2 && per_cpu <= 16) {
			snprintf(options, sizeof(options), "--threads %ld", per_cpu);
			return true;
		}
	}
	is_wanted = false;
	return false;
}

// May be called twice for one option.
static int check_option(int val, const char *value, int is_remote)
{
	(void)val;
	if (parse_option(value))
		return ESPANK_SUCCESS;
	if (is_remote)
		// A newer srun, perhaps. The job was accepted: it runs.
		return ESPANK_SUCCESS;
	slurm_error("--evenkeel=%s: %s", value, USAGE);
	return ESPANK_BAD_ARG;
}

// Registered by hand: sbatch and salloc do not read a table of options.
static struct spank_option option = {
	.name = "evenkeel",
	.arginfo = "run|shares|threads=K|watch|off",
	.usage = "Run at the pace of the average CPU: move threads (run, the default), divide OpenMP "
		 "loops (shares), start K threads for each CPU, or only watch",
	.has_arg = 2,
	.val = 0,
	.cb = check_option,
};

// Offers the option, and reads the words after the plugin's path in plugstack.conf: program=PATH.
int slurm_spank_init(spank_t spank, int ac, char **av)
{
	static const char name[] = "program=";
	spank_context_t context = spank_context();

	for (int i = 0; i < ac; i++) {
		const char *path = av[i] + strlen(name);

		if (strncmp(av[i], name, strlen(name)) || *path != '/' || strlen(path) >= PATH_MAX)
			slurm_error("evenkeel: plugstack.conf: %s is ignored: expected program=PATH, absolute",
				    av[i]);
		else
			strcpy(program, path);
	}
	if ((context == S_CTX_LOCAL || context == S_CTX_ALLOCATOR || context == S_CTX_REMOTE) &&
	    spank_option_register(spank, &option) != ESPANK_SUCCESS)
		slurm_error("evenkeel: Slurm does not take the option --evenkeel");
	return ESPANK_SUCCESS;
}

static long now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

// Reads until the end of the pipe or of the time. The text ends with a 0.
static void read_within(int fd, long patience_ms, char *text, size_t size)
{
	long deadline_ms = now_ms() + patience_ms;
	size_t length = 0;

	while (length + 1 < size) {
		struct pollfd readable = { .fd = fd, .events = POLLIN };
		long left_ms = deadline_ms - now_ms();
		ssize_t more;

		if (left_ms <= 0)
			break;
		if (poll(&readable, 1, (int)left_ms) < 0 && errno == EINTR)
			continue;
		if (!readable.revents)
			break;
		more = read(fd, text + length, size - 1 - length);
		if (more < 0 && errno == EINTR)
			continue;
		if (more <= 0)
			break;
		length += (size_t)more;
	}
	text[length] = '\0';
}

// Kills the process group of a child, and waits for the child, but not for long.
static void end_child(pid_t pid)
{
	const struct timespec pause = { .tv_nsec = 5000000 };
	long deadline_ms = now_ms() + PATIENCE_FOR_END_MS;
	pid_t ended;

	// The child, too: a script may have started programs of its own.
	kill(-pid, SIGKILL);
	while ((ended = waitpid(pid, NULL, WNOHANG)) == 0 || (ended < 0 && errno == EINTR)) {
		if (now_ms() >= deadline_ms)
			break;
		nanosleep(&pause, NULL);
	}
}

// In a child, before exec: its real and saved ids become its effective ones. In slurmstepd, user_init is
// called with the effective ids of the job's user, and with root's real and saved ids: a program that
// starts with these can become root again, and a shell does so at once. In srun all are the user's.
static bool keep_effective_ids(void)
{
	gid_t real_group, group, saved_group;
	uid_t real_user, user, saved_user;

	if (getresgid(&real_group, &group, &saved_group) || getresuid(&real_user, &user, &saved_user))
		return false;
	if ((real_group != group || saved_group != group) && setresgid(group, group, group))
		return false;
	return (real_user == user && saved_user == user) || !setresuid(user, user, user);
}

// Signals that have a handler get their default: no handler of the parent runs in a child. Ignored ones
// stay ignored, as by exec.
static void reset_handlers(void)
{
	const struct sigaction by_default = { .sa_handler = SIG_DFL };
	struct sigaction action;

	for (int number = 1; number < NSIG; number++)
		if (!sigaction(number, NULL, &action) && action.sa_handler != SIG_DFL &&
		    action.sa_handler != SIG_IGN)
			sigaction(number, &by_default, NULL);
}

// In the child of a fork, with all signals blocked: runs evenkeel, with its standard output on `out`.
// The parent may have threads, which hold locks: only calls that are async-signal-safe.
static _Noreturn void exec_evenkeel(int out, char *const arguments[], char *const environment[])
{
	sigset_t none;
	int null;

	if (setpgid(0, 0))
		_exit(127);
	// Where the parent had no standard output, the pipe is in its place, and must not end at exec.
	if (dup2(out, STDOUT_FILENO) < 0 || fcntl(STDOUT_FILENO, F_SETFD, 0))
		_exit(127);
	null = open("/dev/null", O_RDWR);
	if (null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(null, STDERR_FILENO) < 0)
		_exit(127);
#ifdef SYS_close_range
	// With the user's ids alone, this process can be traced by the user: it keeps no file of
	// slurmstepd. A kernel before 5.9 does not know the call; most files end at exec then.
	syscall(SYS_close_range, STDERR_FILENO + 1U, ~0U, 0U);
#endif
	if (!keep_effective_ids())
		_exit(127);
	reset_handlers();
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	execve(program, arguments, environment);
	_exit(127);
}

// What evenkeel prints with these arguments; empty if it cannot be run. Not by posix_spawn, which can
// reset the effective ids to the real ones alone: in slurmstepd, these are root's.
static void ask(char *const arguments[], char *const environment[], long patience_ms, char *text,
		size_t size)
{
	sigset_t all, before;
	int ends[2];
	pid_t pid;

	text[0] = '\0';
	if (pipe2(ends, O_CLOEXEC))
		return;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pid = fork();
	if (pid == 0)
		exec_evenkeel(ends[1], arguments, environment);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	close(ends[1]);
	if (pid > 0) {
		// The child does the same. The first of both counts: `end_child` kills the group.
		setpgid(pid, pid);
		read_within(ends[0], patience_ms, text, size);
		end_child(pid);
	}
	close(ends[0]);
}

// What `evenkeel --version` prints; empty if it cannot be run.
static void ask_version(char *text, size_t size)
{
	char *const arguments[] = { program, "--version", NULL };
	char *const environment[] = { "PATH=/usr/bin:/bin", NULL };

	ask(arguments, environment, PATIENCE_MS, text, size);
}

// The release of Slurm that runs is the one of the header, like 22.05.
static bool is_own_slurm(spank_t spank)
{
	char *major = NULL, *minor = NULL;

	return spank_get_item(spank, S_SLURM_VERSION_MAJOR, &major) == ESPANK_SUCCESS &&
	       spank_get_item(spank, S_SLURM_VERSION_MINOR, &minor) == ESPANK_SUCCESS &&
	       strtoul(major, NULL, 10) == SLURM_VERSION_MAJOR(SLURM_VERSION_NUMBER) &&
	       strtoul(minor, NULL, 10) == SLURM_VERSION_MINOR(SLURM_VERSION_NUMBER);
}

// In srun, once the step has its number and before it is launched.
int slurm_spank_local_user_init(spank_t spank, int ac, char **av)
{
	(void)ac;
	(void)av;
	has_step = is_wanted && is_own_slurm(spank) &&
		   spank_get_item(spank, S_JOB_ID, &own_job) == ESPANK_SUCCESS &&
		   spank_get_item(spank, S_JOB_STEPID, &own_step) == ESPANK_SUCCESS;
	return ESPANK_SUCCESS;
}

// In srun the step has ended by now, and each node has said what it knows: its own part. Which of them
// was the slowest can be told here, where their records lie in a directory that srun sees, too. Nothing
// is asked of the nodes or the controller, and nothing changes how srun ends.
int slurm_spank_exit(spank_t spank, int ac, char **av)
{
	static const char begin[] = "evenkeel: ";
	char job[16], step[16], text[2048];
	char *const arguments[] = { program, "cluster", "line", job, step, NULL };

	(void)spank;
	(void)ac;
	(void)av;
	// Only srun has called the function above.
	if (!has_step)
		return ESPANK_SUCCESS;
	has_step = false;
	snprintf(job, sizeof(job), "%lu", (unsigned long)own_job);
	snprintf(step, sizeof(step), "%lu", (unsigned long)own_step);
	ask(arguments, environ, PATIENCE_AT_EXIT_MS, text, sizeof(text));
	// A part of a line, when the time is over, says nothing, and neither does another program.
	if (!strncmp(text, begin, strlen(begin)) && text[strlen(text) - 1] == '\n')
		dprintf(STDERR_FILENO, "%s", text);
	return ESPANK_SUCCESS;
}

// On each node, once for each step, with the effective ids of the job's user; the real ones are root's.
// What is found here holds for all tasks, which are forked later.
int slurm_spank_user_init(spank_t spank, int ac, char **av)
{
	static const char expected[] = "evenkeel " EVENKEEL_VERSION "\n";
	char text[64];

	(void)ac;
	(void)av;
	if (!is_wanted)
		return ESPANK_SUCCESS;
	if (!is_own_slurm(spank)) {
		snprintf(why_not, sizeof(why_not), "its plugin was built for Slurm %lu.%02lu, not for this one",
			 (unsigned long)SLURM_VERSION_MAJOR(SLURM_VERSION_NUMBER),
			 (unsigned long)SLURM_VERSION_MINOR(SLURM_VERSION_NUMBER));
		return ESPANK_SUCCESS;
	}
	if (eaccess(program, X_OK)) {
		snprintf(why_not, sizeof(why_not), "%s: %s", program, strerror(errno));
		return ESPANK_SUCCESS;
	}
	ask_version(text, sizeof(text));
	if (strcmp(text, expected)) {
		text[strcspn(text, "\n")] = '\0';
		snprintf(why_not, sizeof(why_not), "%s is %s, and the plugin is of evenkeel %s", program,
			 *text ? text : "not to be run", EVENKEEL_VERSION);
	}
	return ESPANK_SUCCESS;
}

// Finds the file of a program as Slurm will: a name without a slash in PATH, and else from the task's
// folder, which is this process' by now. False if there is none.
static bool find_program(spank_t spank, const char *name, char *path)
{
	char *folders, *folder, *rest;
	bool is_found = false;

	if (!strchr(name, '/') && (folders = malloc(MAX_PATH_LIST))) {
		if (spank_getenv(spank, "PATH", folders, MAX_PATH_LIST) == ESPANK_SUCCESS) {
			for (folder = strtok_r(folders, ":", &rest); folder && !is_found;
			     folder = strtok_r(NULL, ":", &rest))
				is_found = snprintf(path, PATH_MAX, "%s/%s", folder, name) < PATH_MAX &&
					   !access(path, X_OK);
		}
		free(folders);
	}
	return is_found || (snprintf(path, PATH_MAX, "%s", name) < PATH_MAX && !access(path, F_OK));
}

// Whether this file is a text that no kernel runs: the list of programs of srun --multi-prog, which
// stands in the place of the program. The tasks have other words then.
static bool is_list(const char *path)
{
	struct stat file;
	char magic[4];
	ssize_t length;
	int fd;

	if (stat(path, &file) || !S_ISREG(file.st_mode))
		return false;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	length = read(fd, magic, sizeof(magic));
	close(fd);
	return length < (ssize_t)sizeof(magic) ||
	       (memcmp(magic, "\177ELF", 4) && memcmp(magic, "#!", 2));
}

// Whether the task is a container of `srun --container`: its words were given to the runtime before.
static bool is_container(spank_t spank)
{
	char bundle[2];
	spank_err_t found = spank_getenv(spank, "SLURM_CONTAINER", bundle, sizeof(bundle));

	return found == ESPANK_NOSPACE || (found == ESPANK_SUCCESS && *bundle);
}

static void say_why_not(int local_id)
{
	if (local_id == 0)
		dprintf(STDERR_FILENO, "evenkeel: %s; the job runs without evenkeel\n", why_not);
}

// In each task, as the job's user, with its CPUs, files and environment, before Slurm calls exec.
int slurm_spank_task_init(spank_t spank, int ac, char **av)
{
	char task_options[sizeof(options) + sizeof(" --quiet")];
	uint32_t step = 0;
	int local_id = 0, argc = 0;
	char **argv = NULL;
	char file[PATH_MAX];
	char own_pid[32];
	char *path;

	(void)ac;
	(void)av;
	if (!is_wanted)
		return ESPANK_SUCCESS;
	// The shell of salloc waits for its user; what that starts by srun is a step of its own.
	if (spank_get_item(spank, S_JOB_STEPID, &step) != ESPANK_SUCCESS ||
	    step == SLURM_EXTERN_CONT || step == SLURM_INTERACTIVE_STEP)
		return ESPANK_SUCCESS;
	if (spank_get_item(spank, S_TASK_ID, &local_id) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_ARGV, &argc, &argv) != ESPANK_SUCCESS || argc < 1 || !argv ||
	    !argv[0])
		return ESPANK_SUCCESS;
	if (!*why_not && access(program, X_OK))
		snprintf(why_not, sizeof(why_not), "%s: %s", program, strerror(errno));
	if (!*why_not && find_program(spank, argv[0], file) && is_list(file))
		snprintf(why_not, sizeof(why_not), "%s is no program that it can start", argv[0]);
	if (!*why_not && is_container(spank))
		strcpy(why_not, "the program of a container (--container) cannot be started by it");
	if (*why_not) {
		say_why_not(local_id);
		return ESPANK_SUCCESS;
	}
	// The loops of each task are divided by a process of its own: one of them reports.
	snprintf(task_options, sizeof(task_options), "%s%s", options,
		 is_shares && local_id > 0 ? " --quiet" : "");
	// The site's and the user's task prologs inherit the variables, and may start evenkeel themselves.
	snprintf(own_pid, sizeof(own_pid), "%ld", (long)getpid());
	path = strdup(program);
	if (!path || spank_setenv(spank, "EVENKEEL_TASK_PID", own_pid, 1) != ESPANK_SUCCESS ||
	    spank_setenv(spank, "EVENKEEL_TASK_PROGRAM", argv[0], 1) != ESPANK_SUCCESS ||
	    spank_setenv(spank, "EVENKEEL_TASK_OPTIONS", task_options, 1) != ESPANK_SUCCESS) {
		spank_unsetenv(spank, "EVENKEEL_TASK_PROGRAM");
		spank_unsetenv(spank, "EVENKEEL_TASK_PID");
		snprintf(why_not, sizeof(why_not), "no memory");
		say_why_not(local_id);
		free(path);
		return ESPANK_SUCCESS;
	}
	// This process is the task's own: other tasks have another copy of the words.
	argv[0] = path;
	return ESPANK_SUCCESS;
}
