"""The server side: who takes part, on which samples, until when, and what becomes of the updates."""
