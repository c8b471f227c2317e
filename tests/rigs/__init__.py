"""What finds faults that no single call shows; see the page on rigs."""
