#!/bin/busybox sh
# The first process of a machine that boots a kernel for `make kernels`: see guest.rs.
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
sh /load

# This machine's files, read-only, and what a running system writes or makes.
if mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=262144,cache=loose host /host; then
    for place in proc sys dev; do
        mount --rbind "/$place" "/host/$place" || mount -o bind "/$place" "/host/$place"
    done
    mount -t tmpfs run /host/run
    mkdir -p /host/run/tmp /dev/pts /dev/shm
    mount -t devpts devpts /host/dev/pts
    mount -t tmpfs shm /host/dev/shm
    mount -t cgroup2 cgroup /host/sys/fs/cgroup
    mount -t bpf bpf /host/sys/fs/bpf
    mount -t tracefs tracefs /host/sys/kernel/tracing
    ip link set lo up
    cp /inside /host/run/inside
    chroot /host /bin/sh /run/inside
else
    echo "@@ why this machine's files cannot be seen (9p)"
fi
echo "@@ end"
poweroff -f
