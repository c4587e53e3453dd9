/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * The south side wrap: what lies between the server's TCP and its clients.
 *
 * One service is one set of these programs and maps. Its server is an ordinary process in a
 * cgroup; its clients see one TCP connection for as long as they like, and the server's TCP
 * behind it may be another one after each crash.
 *
 *   1. While all is well, `ingress` and `egress` watch: they remember for each connection what
 *      either side was told, and copy the client's bytes into a ring for the logger before the
 *      server gets them (ingress.h, egress.h, mirror.h).
 *   2. When a process of the server dies, `on_exit` shuts the gate: from this instruction on
 *      nothing of the service leaves this host, and what clients send is not delivered
 *      (latch.h).
 *   3. User space removes what is left of the server, starts it again, and asks through
 *      `control` for a new incarnation and, connection by connection, for a splice: it sends a
 *      fabricated SYN; `egress` catches the answer, computes the deltas and returns the third
 *      ACK (egress.h, control.h).
 *   4. User space replays the record of the instream. What the new server says again is
 *      compared with what the client was sent and acknowledged in the client's name (verify.h).
 *   5. From then on both directions are translated, for the rest of the connection's life.
 *
 * With a lease, nothing of this leaves the host when that is over (fence.h).
 *
 * The pure model of all this is the crate `south-model`; the two are compared packet by packet.
 */
#include "lib/kernel.h"
#include "lib/siphash.h"
#include "lib/options.h"
#include "intf/digest.h"
#include "intf/flow.h"
#include "intf/service.h"
#include "intf/mirror.h"
#include "intf/link.h"
#include "intf/read_cursor.h"
#include "intf/event.h"
#include "intf/expect.h"
#include "intf/control.h"
#include "replay/state.h"
#include "replay/zero_window.h"
#include "replay/read_cursors.h"
#include "replay/doubt.h"
#include "replay/link.h"
#include "replay/fence.h"
#include "replay/mirror.h"
#include "replay/verify.h"
#include "replay/digest.h"
#include "replay/clamp.h"
#include "replay/restored.h"
#include "replay/ingress.h"
#include "replay/egress.h"
#include "replay/latch.h"
#include "replay/control.h"
#include "replay/renew.h"

/* Types that no map mentions, so that the generated Rust has them as well. */
const struct event *generate_event;
const struct mirror_header *generate_mirror_header;
const struct control *generate_control;
enum flow_mode generate_flow_mode;
enum closing generate_closing;
enum response generate_response;
enum digest_comparison generate_digest_comparison;
enum sampling generate_sampling;
enum unprotected generate_unprotected;
enum crash_policy generate_crash_policy;
enum counter generate_counter;
enum event_kind generate_event_kind;
enum control_op generate_control_op;
enum closed_reason generate_closed_reason;
enum ack_strategy generate_ack_strategy;
enum restored generate_restored;
enum cursor_state generate_cursor_state;

char LICENSE[] SEC("license") = "GPL";
