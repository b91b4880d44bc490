"""Where the time of a run goes, who makes the others wait and why: passes that several findings share."""
