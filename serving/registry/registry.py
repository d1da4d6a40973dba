"""The model registry: versions in an object store, each a manifest over content-addressed blobs.

models/<name>/<version>/manifest.json   what a version is; written last, and once
blobs/sha256/<digest>                   the bytes of its files, and its signature
releases/<env>/<model>.json             which version serves (see releases.py)
predictions/<env>/<model>/              what was answered (see gateway/prediction/shipping.py)
"""

from serving.registry.publishing import Published, push
from serving.registry.pulling import pull
from serving.registry.versions import models, show, versions

__all__ = ["Published", "models", "pull", "push", "show", "versions"]
