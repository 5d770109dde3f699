-- Looks at an item without bringing its value.
-- nil: there is nothing. Else: its first 13 bytes; its length; its remaining life in ms, -1 for ever.
local head = redis.call('GETRANGE', KEYS[1], '0', '12')
if head == '' and redis.call('EXISTS', KEYS[1]) == 0 then return false end
return {head, redis.call('STRLEN', KEYS[1]), redis.call('PTTL', KEYS[1])}
