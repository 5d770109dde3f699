-- Joins bytes behind an item, and gives it another version: after a failover or from a snapshot it may stand as it was before, and grow to the same length again.
-- ARGV: the bytes; the longest that the item may become, with its header of 9 bytes; 8 bytes of a version without its highest bit.
-- 1: stored. 0: there is no item, or no room in it. -2: the value there is not an item.
-- What it has become is known from the append itself, a call less than asking first; what was too long, which is rare, is taken back.
local call, key, version = redis.call, KEYS[1], ARGV[3]
local head = call('GETRANGE', key, '0', '8')
local first, flagged = head:byte(1, 2)
if first ~= 193 or #head ~= 9 then
  if head == '' and call('EXISTS', key) == 0 then return 0 end
  return -2
end
local max = tonumber(ARGV[2])
if flagged >= 128 then max, version = max + 4, string.char(version:byte() + 128) .. version:sub(2) end
local last = redis.pcall('APPEND', key, ARGV[1])
if type(last) == 'table' then
  -- Longer than the server takes is no room, too. Whatever else it is (OOM) is told.
  if last.err:find('maximum allowed size', 1, true) then return 0 end
  return last
end
local done, is_room = 'SETRANGE', last <= max
if is_room then
  last = redis.pcall('SETRANGE', key, '1', version)
else
  done, last = 'SET', redis.pcall('SET', key, call('GETRANGE', key, '0', last - #ARGV[1] - 1), 'KEEPTTL')
end
if type(last) == 'table' and last.err then return redis.error_reply('HALF ' .. done .. ' ' .. last.err) end
if is_room then return 1 end
return 0
