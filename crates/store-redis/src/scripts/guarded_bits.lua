-- Changes a value of bits that begins with a mark, or removes it.
-- ARGV: the mark; put, incr or drop; of a put the last byte of the mark, then type, offset and value of each number; of an incr type, offset, by how
-- much, and the last byte of mark and number; of a drop marks that do as well.
-- nil: it does not begin with the mark. Else, of a put: 1; of an incr: the bytes to the last one, as they were before, or 0 where the number would leave its
-- range; of a drop: 1, or 0 where there is nothing.
-- Lua counts in doubles: the new number, which may be wider, is for the client to tell.
local call, key, mark, act = redis.call, KEYS[1], ARGV[1], ARGV[2]
if act == 'incr' then
  local old = call('GETRANGE', key, '0', ARGV[6])
  if old:sub(1, #mark) ~= mark then return false end
  if call('BITFIELD', key, 'OVERFLOW', 'FAIL', 'INCRBY', ARGV[3], ARGV[4], ARGV[5])[1] then return old end
  return 0
end
if act == 'drop' then
  local is_marked = call('GETRANGE', key, '0', #mark - 1) == mark
  for i = 3, #ARGV do
    is_marked = is_marked or call('GETRANGE', key, '0', #ARGV[i] - 1) == ARGV[i]
  end
  if is_marked then return call('UNLINK', key) end
  if call('EXISTS', key) == 1 then return false end
  return 0
end
if call('GETRANGE', key, '0', ARGV[3]) ~= mark then return false end
if #ARGV == 6 then
  call('BITFIELD', key, 'SET', ARGV[4], ARGV[5], ARGV[6])
  return 1
end
local sets, run = {}, call
for i = 4, #ARGV, 3 do
  local at = #sets
  sets[at + 1], sets[at + 2], sets[at + 3], sets[at + 4] = 'SET', ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if at >= 4000 or i + 3 > #ARGV then
    local told = run('BITFIELD', key, unpack(sets))
    -- Of those before, numbers stand by now.
    if told.err then return redis.error_reply('HALF BITFIELD ' .. told.err) end
    sets, run = {}, redis.pcall
  end
end
return 1
