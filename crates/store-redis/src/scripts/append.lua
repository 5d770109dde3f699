-- Joins bytes behind an item. Its version stays: version and length together tell what it holds.
-- ARGV: the bytes; the longest that the item may become, with its header of 9 bytes.
-- 1: stored. 0: there is no item, or no room in it. -2: the value there is not an item.
-- What it has become is known from the append itself, a call less than asking first; what was too long, which is rare, is taken back.
local call, key = redis.call, KEYS[1]
local head = call('GETRANGE', key, '0', '8')
local first, flagged = head:byte(1, 2)
if first ~= 193 or #head ~= 9 then
  if head == '' and call('EXISTS', key) == 0 then return 0 end
  return -2
end
local max = tonumber(ARGV[2])
if flagged >= 128 then max = max + 4 end
local last = redis.pcall('APPEND', key, ARGV[1])
if type(last) == 'table' then
  -- Longer than the server takes is no room, too. Whatever else it is (OOM) is told.
  if last.err:find('maximum allowed size', 1, true) then return 0 end
  return last
end
if last <= max then return 1 end
local back = redis.pcall('SET', key, call('GETRANGE', key, '0', last - #ARGV[1] - 1), 'KEEPTTL')
if back.err then return redis.error_reply('HALF SET ' .. back.err) end
return 0
