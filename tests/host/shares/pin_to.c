// SPDX-License-Identifier: GPL-2.0-only
//
// Lets the Fortran program pin its threads.

#define _GNU_SOURCE
#include "pin.h"

void pin_to(int number)
{
	pin_thread(number);
}
