-- A held message waits in the due set until its route is resumed, or has room in its rate. Its score there is HELD_MS
-- plus its due moment, so it keeps its order and is never due. HELD_MS (2^43) is in the year 2248, beyond every due
-- moment. bridge/core/orders.py has the same number.
local HELD_MS = 8796093022208
