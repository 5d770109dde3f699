-- Reads an item with its remaining life, of one moment.
-- nil: there is nothing. Else: the item; its remaining life in ms, -1 for ever.
local item = redis.call('GET', KEYS[1])
if not item then return false end
return {item, redis.call('PTTL', KEYS[1])}
