/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which system call a task has entered, by the registers of user space. For waiting.bpf.c and
 * barriers.bpf.c.
 */
#ifndef EVENKEEL_SYSTEM_CALL_H
#define EVENKEEL_SYSTEM_CALL_H

/* No system call. */
#define NO_CALL (-1L)

/* The system call that these registers of user space have entered, or NO_CALL. */
static __always_inline long system_call_of(const bpf_user_pt_regs_t *regs)
{
#if defined(__TARGET_ARCH_x86)
	/* 32-bit programs number their calls otherwise. */
	return regs->cs == 0x23 ? NO_CALL : (long)regs->orig_rax;
#elif defined(__TARGET_ARCH_arm64)
	return regs->regs[8];
#else
	return NO_CALL;
#endif
}

/* Its first argument. */
static __always_inline u64 first_argument_of(const bpf_user_pt_regs_t *regs)
{
#if defined(__TARGET_ARCH_arm64)
	/* libbpf's macro reads the kernel's own registers, which lie behind those of user space. */
	return regs->regs[0];
#else
	return PT_REGS_PARM1_SYSCALL(regs);
#endif
}

#endif
