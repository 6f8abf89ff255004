"""Queues of Kubernetes: Kueue's cluster queues with cohorts and borrowing, and Volcano's weighted queues with gangs."""
