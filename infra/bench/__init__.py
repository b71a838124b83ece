"""`make bench`: what a run costs, here and beside others.

1. `overhead`: what the framework itself takes per model turn, in memory; with `make bench-peers` beside other ones.
2. `counts`: requests and capacity of a run on DynamoDB, of the design of whole checkpoints under keys, and of peers.
3. `imports`: what a cold start imports.

Each measurement of time has a process of its own. Read ratios within one run, and the spread beside the median.
"""
