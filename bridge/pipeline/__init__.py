"""The stages of a message: intake, decide, park, wake, claim, publish, settle; and relay without a store."""
