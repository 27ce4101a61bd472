"""What a deployment says: services with their images, processes, mounts and policies."""

from perdure.contracts.deployment.roots import read_roots

__all__ = ["read_roots"]
