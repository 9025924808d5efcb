"""Typed, frozen settings: the schema (`settings`), its only reader (`load`), and its generated reference."""
