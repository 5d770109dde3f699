-- Writes an item over an item, never over what another program wrote.
-- ARGV: the item; its life in ms, or 0; "set" or "replace".
-- 1: stored. 0: there is nothing to replace. -2: the value there is not an item.
local head = redis.call('GETRANGE', KEYS[1], 0, 8)
if #head ~= 9 or head:byte() ~= 193 then
  if head ~= '' or redis.call('EXISTS', KEYS[1]) == 1 then return -2 end
  if ARGV[3] == 'replace' then return 0 end
end
if ARGV[2] == '0' then
  redis.call('SET', KEYS[1], ARGV[1])
else
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
return 1
