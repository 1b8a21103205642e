"""The client side of a round: sample selection, training budget, summaries of losses, and compression.

`client.round` makes all client-side decisions; `client.policies` lists the policies that a server may name.
"""
