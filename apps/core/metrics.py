"""What /metrics shows. The site registers its collectors here; values are read when asked for.

Several web processes answer in turn, so nothing is counted in memory: each value comes from the database.
"""

from prometheus_client import CollectorRegistry

registry = CollectorRegistry(auto_describe=False)
