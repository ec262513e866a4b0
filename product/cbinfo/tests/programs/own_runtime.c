/* A runtime of its own: spins until this thread has run until `end_ns`. */
#include <time.h>

long own_clock(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return now.tv_sec * 1000000000L + now.tv_nsec;
}

void own_wait(long end_ns)
{
	volatile int spin = 0;

	while (own_clock() < end_ns)
		for (int i = 0; i < 20000; i++)
			spin++;
}
