"""`durable`, the command line of a deployment: runs, their history, forks and comparisons, and approvals.

It speaks to the API alone, signed with the caller's AWS credentials, and knows nothing of what is behind it.
"""
