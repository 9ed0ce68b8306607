"""Deployments as users make them: the image in a Docker daemon, the chart by Helm, a Kubernetes.

No lane of ``make test`` runs these tests. What they need and cannot find, they say.
"""
