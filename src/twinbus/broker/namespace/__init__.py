"""One namespace: its entities, its store, its commits.

namespace                 the running namespace: serves its queues and commits their changes
catalogue                 the entities by name
catalogue_plan            the entities as values, on which administrative changes are planned
administrative_changes    changes that wait for their transaction
transaction               one commit, and its parts when the store refuses it
store_access              the threads of the store, and the reads that queues request
background_tasks          auto-delete on idle, and the other background tasks
forwarder                 automatic forwarding
idle_links                detaching of idle links
purge                     purge of queues, and reset of namespaces
catalogue_repair          repair of entities that do not fit together
"""
