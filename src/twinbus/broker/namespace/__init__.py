"""One namespace: its entities, its store, its commits.

namespace                 the entities, and the loop that commits
catalogue                 entities by name; catalogue_plan as values on which changes are planned
administrative_changes    how changes wait for their transaction
transaction               what one commit takes, and its parts when the store refuses it
store_access              the store's threads, and what queues ask to have read
background_tasks          what entities do by themselves; forwarder, idle_links
purge                     queues that are purged, and namespaces that are reset
catalogue_repair          entities that do not fit together
"""
