/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Which deaths of processes are crashes.
 */
#pragma once

#include "../lib/kernel.h"

enum crash_policy {
	CRASH_SIGNAL = 0, /* any process by signal, the main process also by its status */
	CRASH_ANY = 1,    /* a non-zero status of any process too */
	CRASH_MAIN = 2,   /* of the main process alone: what becomes of another is its parent's affair */
};
