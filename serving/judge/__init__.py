"""The judge: from counts of bad requests to PASS, FAIL, INCONCLUSIVE or INVALID."""
