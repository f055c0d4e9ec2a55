"""``twinbus pair``, ``preflight`` and ``backlog``.

commands           the commands and their options
execution          runs ``pair plan``, ``apply`` and ``status``, and ``preflight``
backlog            ``twinbus backlog``; backlog_cleanup deletes backlog queues that are empty
"""
