#!/bin/sh
# Lets the routes of a Linux router balance the packets of a pool: outlive balance --no-forward
# --on-change /usr/share/outlive/ecmp.sh
#
# outlive runs this script after each change of the pool, on the router. The environment has the members that get new
# connections (OUTLIVE_MEMBERS, addresses) and the addresses of the pool (OUTLIVE_SERVICE, as ADDRESS:PORT). The router
# has a path to each member at DEVICE, and chooses by addresses and ports:
#
#   sysctl -w net.ipv4.ip_forward=1 net.ipv4.fib_multipath_hash_policy=1
#   sysctl -w net.ipv6.conf.all.forwarding=1 net.ipv6.fib_multipath_hash_policy=1
#
# The router has no address of the pool itself. An IPv6 address of the pool needs members with IPv6 addresses.
set -eu
DEVICE=${DEVICE:-eth0}
PATH=$PATH:/usr/sbin:/sbin

for service in $OUTLIVE_SERVICE; do
    address=${service%:*}
    family=-4
    case $address in
    \[*)
        family=-6
        address=${address#?}
        address=${address%?}
        ;;
    esac
    paths=
    for member in $OUTLIVE_MEMBERS; do
        case $family$member in
        -4*:*) paths="$paths nexthop via inet6 $member dev $DEVICE" ;;
        -4* | -6*:*) paths="$paths nexthop via $member dev $DEVICE" ;;
        esac
    done
    if [ -n "$paths" ]; then
        # shellcheck disable=SC2086
        ip $family route replace "$address" $paths
    else
        ip $family route del "$address" 2>/dev/null || :
    fi
done
