#!/bin/sh
# Lets nftables balance the packets of a pool: outlive balance --no-forward --on-change /usr/share/outlive/nftables.sh
#
# outlive runs this script after each change of the pool. The environment has the members that get new connections
# (OUTLIVE_MEMBERS, addresses), the addresses of the pool (OUTLIVE_SERVICE, as ADDRESS:PORT) and its name (OUTLIVE_POOL).
# The standard input has the whole table as JSON. Packets come and go at DEVICE. The hash of nftables gives most connections to another member after a change: members forward the packets
# of the connections that these have.
set -eu
DEVICE=${DEVICE:-eth0}
PATH=$PATH:/usr/sbin:/sbin

mac=$(cat "/sys/class/net/$DEVICE/address")
count=0
map=
for member in $OUTLIVE_MEMBERS; do
    # An entry of the neighbour table that stays, so that the rule needs no ARP.
    neighbour=$(ip neigh show "$member" dev "$DEVICE" | sed -n 's/.*lladdr \([0-9a-f:]*\).*/\1/p')
    if [ -z "$neighbour" ]; then
        ping -c 1 -W 1 "$member" >/dev/null 2>&1 || :
        neighbour=$(ip neigh show "$member" dev "$DEVICE" | sed -n 's/.*lladdr \([0-9a-f:]*\).*/\1/p')
    fi
    [ -n "$neighbour" ] || continue
    map="$map${map:+, }$count : $neighbour"
    count=$((count + 1))
done

rules=
for service in $OUTLIVE_SERVICE; do
    address=${service%:*}
    case $address in
    \[*)
        family=ip6
        address=${address#?}
        address=${address%?}
        ;;
    *) family=ip ;;
    esac
    for_service="$family daddr $address tcp dport ${service##*:}"
    case $count in
    0) rules="$rules $for_service drop;" ;;
    *) rules="$rules $for_service ether saddr set $mac \
        ether daddr set jhash $family saddr . tcp sport mod $count map { $map } fwd to \"$DEVICE\";" ;;
    esac
done

# In one transaction: no packet sees a part of the rules.
nft -f - <<EOF
table netdev outlive_$OUTLIVE_POOL
delete table netdev outlive_$OUTLIVE_POOL
table netdev outlive_$OUTLIVE_POOL {
  chain inbound {
    type filter hook ingress device "$DEVICE" priority 0;
    $rules
  }
}
EOF
