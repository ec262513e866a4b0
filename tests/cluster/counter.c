// Prints a line for each SIGUSR1, until SIGUSR2 ends it.

#include <signal.h>
#include <unistd.h>

static void note(int signal)
{
	if (signal == SIGUSR2)
		_exit(7);
	(void)!write(STDOUT_FILENO, "got\n", 4);
}

int main(void)
{
	struct sigaction action = { .sa_handler = note };

	sigaction(SIGUSR1, &action, NULL);
	sigaction(SIGUSR2, &action, NULL);
	(void)!write(STDOUT_FILENO, "ready\n", 6);
	// Not for ever, should the test be killed.
	alarm(60);
	for (;;)
		pause();
}
