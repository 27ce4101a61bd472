"""Pure state machines and plans. No I/O, no await, no clock read."""
