"""Finding RMSNorms in a graph: grammar (what), engine (how), checks (named predicates), match (the results)."""
