"""The test bed of section 4.6: real Flower processes on this machine, each held to the times of a real phone.

    fedbalancer testbed --clients 21 --method fedavg+1t,fedbalancer

One SuperLink and one SuperNode a phone, all on loopback; every phone takes as long as a recorded one by pausing, and
all clocks run `speed` times faster than the phones'. The policies, the wire and the run folders are those of
`fedbalancer.flower`.
"""
