/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Marks of packets.
 */
#pragma once

#include "../lib/kernel.h"

/* Marks of packets that we made ourselves; offsets from the mark of the service. A mark cannot come in
 * from the network, and setting one needs CAP_NET_ADMIN. */
#define MARK_CLIENT_SPACE 0 /* for the server, to be translated like the client's own */
#define MARK_SERVER_SPACE 1 /* for the server, as it is */
#define MARK_TO_CLIENT 2    /* for the client, as it is */
#define MARK_SEGMENT 3      /* a copy of a segment for the logger, still to be wrapped */
#define MARK_TO_LOGGER 4    /* for the logger, as it is */
#define MARK_TO_NEIGHBOUR 5 /* for the client, as it is; the link address of its neighbour is still to be found */
#define MARK_FROM_SERVER 6  /* for the client, to be translated like the server's own; the same */
#define MARK_QUEUED 7       /* for the server, to be translated like the client's own: a request that has waited for its turn */
#define MARKS 8
