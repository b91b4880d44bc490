"""Who makes a job slow and why: persistent and moving laggards, judged within their role, for the slow findings."""
