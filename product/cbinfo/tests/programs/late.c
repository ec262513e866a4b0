/*
 * late LIBRARY ARGUMENTS: waits for a line, loads the library (phases.c, with its OpenMP runtime), and
 * calls its `phases` with the arguments.
 */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	int (*phases)(int, char **);
	void *library;

	puts("loading");
	fflush(stdout);
	if (argc < 2 || getchar() == EOF)
		return 2;
	library = dlopen(argv[1], RTLD_NOW);
	phases = library ? (int (*)(int, char **))dlsym(library, "phases") : NULL;
	if (!phases) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	return phases(argc - 1, argv + 1);
}
