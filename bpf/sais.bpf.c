// SPDX-License-Identifier: GPL-2.0-only
/*
 * SAIs, source-aware interrupt scheduling (paper 001): a packet's softirq runs on the core
 * whose task waits for it.
 *
 * Flow mode: the client alone knows which thread consumes which connection (consumer.h), so
 * no server has to send hints back. Hint mode, the paper's way: the client sends the core
 * along (messager.h), and servers send it back (sais-serve.bpf.c). Packets are read at the
 * device (parse.h) and directed to the consumer's core (compose.h), unless that is about to go
 * offline (hotplug.h). Everything here vanishes with the process that loaded it.
 */
#include "sais/kernel.h"
#include "sais/intf.h"
#include "sais/hint.h"
#include "sais/peer.h"
#include "sais/state.h"
#include "sais/parse.h"
#include "sais/paper.h"
#include "sais/messager.h"
#include "sais/consumer.h"
#include "sais/compose.h"
#include "sais/hotplug.h"

char LICENSE[] SEC("license") = "GPL";
