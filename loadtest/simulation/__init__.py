"""Services whose true behaviour is known, to judge the judge by."""
