"""The test bed of section 4.6: real Flower processes, each slowed down to the speed of a recorded phone.

    fedbalancer testbed --clients 21 --method fedavg+1t,fedbalancer

One SuperLink and one SuperNode per phone, all on loopback. Every emulated phone pauses until a recorded phone would be
done; all clocks run `speed` times as fast as the phones'. Policies, messages and run folders are those of
`fedbalancer.flower`.
"""
