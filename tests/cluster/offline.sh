# Run a command in a network that leads nowhere, and write what it sent there as JSON to $SENT.
# Everything but loopback takes the default route, over a link whose other end nobody reads. Only the
# scheduler, $SCHEDULER, is out of reach at once: SLURM's own programs ask it, as on any cluster.
set -e
ip link set lo up
ip link add out type veth peer name gone
for end in out gone; do
    # IPv6 would send packets of its own.
    ip link set "$end" addrgenmode none
    ip link set "$end" up
done
ip address add 192.0.2.2/24 dev out
ip route add default via 192.0.2.1
ip route add unreachable "$SCHEDULER"
code=0
"$@" || code=$?
ip -json -statistics link show out >"$SENT"
exit "$code"
