/*
 * Two threads that meet at a barrier of their own after each phase, and spin there: in the text of the
 * program, which has no names. Runs until it is ended.
 */
#include <pthread.h>
#include <stdatomic.h>

#define STEPS 200000

static atomic_long arrived;
static volatile long sink[2][64];

static void work(int me)
{
	for (long i = 0; i < STEPS; i++)
		sink[me][i & 7] += i;
}

static void *thread(void *own)
{
	int me = own ? 1 : 0;

	for (long phase = 1;; phase++) {
		work(me);
		atomic_fetch_add(&arrived, 1);
		while (atomic_load(&arrived) < 2 * phase)
			;
	}
	return 0;
}

int main(void)
{
	pthread_t other;

	if (pthread_create(&other, 0, thread, &arrived))
		return 1;
	thread(0);
}
