// SPDX-License-Identifier: GPL-2.0-only
/*
 * SAIs, source-aware interrupt scheduling (paper 001): a packet's softirq runs on the core
 * where its consumer waits for it.
 *
 * Flow mode: the client alone knows which thread consumes which connection (consumer.h), so
 * no server has to send hints back. Hint mode, the paper's way: the client sends the core
 * along (messager.h), and servers send it back (sais-serve.bpf.c). Packets are read at the
 * device (parse.h) and directed to the consumer's core (compose.h), unless that is about to go
 * offline (hotplug.h). Everything here vanishes with the process that loaded it.
 */
#include "kernel.h"
#include "intf.h"
#include "hint.h"
#include "peer.h"
#include "state.h"
#include "parse.h"
#include "paper.h"
#include "messager.h"
#include "consumer.h"
#include "auto.h"
#include "compose.h"
#include "hotplug.h"

char LICENSE[] SEC("license") = "GPL";
