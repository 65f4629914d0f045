"""SpecDec on a real task: English to German user-interface text, a target and its Spec-Drafter."""
