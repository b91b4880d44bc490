"""A running job, followed through its logs: only what was appended is read, and only the present is kept.

``Follower`` reads, ``Job`` keeps the state of all ranks and groups, ``Watch`` joins them and raises alarms. Nothing
here loads pandas or an engine: watching has to stay small beside a thousand ranks.
"""
