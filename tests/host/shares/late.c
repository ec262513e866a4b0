// SPDX-License-Identifier: GPL-2.0-only
//
// A program without OpenMP that loads a module with loops late and privately, as interpreters do:
// neither the module nor its OpenMP runtime is in the program's global scope. Loads a second one of
// another name. Prints what the modules' loops gave to each thread.
//
//   late MODULE MODULE

#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	cpu_set_t allowed;

	if (sched_getaffinity(0, sizeof(allowed), &allowed))
		return 1;
	for (int i = 1; i < argc; i++) {
		void *module = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
		int (*run)(void) = module ? dlsym(module, "run_module") : NULL;

		if (!run) {
			fprintf(stderr, "%s\n", dlerror());
			return 1;
		}
		// The module pins its threads, this one among them.
		if (run() || sched_setaffinity(0, sizeof(allowed), &allowed))
			return 1;
	}
	return argc < 2;
}
