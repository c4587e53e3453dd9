/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * A member of a pool (TRODS): one of several hosts with the same objects behind one address.
 *
 *   1. The sequence numbers of a connection follow from a key of the pool (timestamps.h), so each member knows these.
 *   2. While a response is under way, its request stays unacknowledged, and timestamps say where the body began: the
 *      client holds all that another member needs (turn.h, egress.h).
 *   3. A segment of a connection that nobody here knows goes to user space, if a member of the pool has served the client
 *      (ingress.h, copy.h). User space connects to the server in the client's name, asks for the rest, judges the answer,
 *      and writes the flow: from then on both directions are translated.
 *   4. When a process of the server dies, the gate is shut before its sockets can say so (latch.h). When the lease of the
 *      member is over, nothing leaves (state.h, fence.h).
 *
 * The pure model is the crate `objects`; the two are compared packet by packet.
 */
#include "lib/kernel.h"
#include "intf/endpoint.h"
#include "intf/objects.h"
#include "objects/state.h"
#include "objects/timestamps.h"
#include "objects/head.h"
#include "objects/turn.h"
#include "objects/copy.h"
#include "objects/turned.h"
#include "objects/fence.h"
#include "objects/encapsulation.h"
#include "objects/ingress.h"
#include "objects/egress.h"
#include "objects/latch.h"
#include "objects/control.h"

/* Types that no map mentions, so that the generated Rust has them as well. */
const struct object_event *generate_object_event;
const struct object_copy *generate_object_copy;
const struct member_control *generate_member_control;
const struct store_confirmation *generate_store_confirmation;
enum object_phase generate_object_phase;
enum store_kind generate_store_kind;
enum chunk_place generate_chunk_place;
enum chunk_constant generate_chunk_constant;
enum object_mode generate_object_mode;
enum unprotected_object generate_unprotected_object;
enum object_event_kind generate_object_event_kind;
enum object_copy_kind generate_object_copy_kind;
enum object_counter generate_object_counter;
enum encapsulation_constant generate_encapsulation_constant;
enum member_op generate_member_op;
enum crash_policy generate_crash_policy;

char LICENSE[] SEC("license") = "GPL";
