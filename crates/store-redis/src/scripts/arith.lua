-- Adds to, or subtracts from, a value of decimal digits: unsigned, 64 bits, wrapping at 2^64 and stopping at 0.
-- Lua counts in doubles: exact below 2^53. Beyond 13 digits a number is two limbs: what stands before its last ten digits, and those.
-- ARGV: "+" or "-"; the delta; 8 bytes of a version without its highest bit; the number to begin with where there is none, or "";
-- its life in ms, or 0.
-- Digits: the new number. nil: there is no item. -2: the value there is not an item. -3: it is not a number.
local call, key, by = redis.call, KEYS[1], ARGV[2]
local old = call('GETRANGE', key, '0', '63')
local first, flagged = old:byte(1, 2)
if first ~= 193 or #old < 9 then
  if old ~= '' or call('EXISTS', key) == 1 then return -2 end
  if ARGV[4] == '' then return false end
  local item = '\193' .. ARGV[3] .. ARGV[4]
  if ARGV[5] == '0' then
    call('SET', key, item)
  else
    call('SET', key, item, 'PX', ARGV[5])
  end
  return ARGV[4]
end
local head, digits = '\193' .. ARGV[3], nil
if flagged >= 128 then
  if #old < 13 then return -2 end
  head, digits = '\193' .. string.char(ARGV[3]:byte() + 128) .. ARGV[3]:sub(2) .. old:sub(10, 13), old:sub(14)
else
  digits = old:sub(10)
end
if digits == '' or #digits > 20 or digits:find('%D') then return -3 end
local number
if #digits <= 13 and #by <= 13 then
  if ARGV[1] == '+' then number = digits + by else number = digits - by end
  if number < 0 then number = 0 end
  number = string.format('%.0f', number)
else
  local high, low = tonumber(digits:sub(1, -11)) or 0, tonumber(digits:sub(-10))
  if high > 1844674407 or (high == 1844674407 and low > 3709551615) then return -3 end
  local by_high, by_low = tonumber(by:sub(1, -11)) or 0, tonumber(by:sub(-10))
  if ARGV[1] == '+' then
    high, low = high + by_high, low + by_low
    if low >= 1e10 then high, low = high + 1, low - 1e10 end
    if high > 1844674407 or (high == 1844674407 and low > 3709551615) then
      high, low = high - 1844674407, low - 3709551616
    end
  else
    high, low = high - by_high, low - by_low
  end
  if low < 0 then high, low = high - 1, low + 1e10 end
  number = '0'
  if high > 0 then
    number = string.format('%.0f%010.0f', high, low)
  elseif high == 0 then
    number = string.format('%.0f', low)
  end
end
call('SET', key, head .. number, 'KEEPTTL')
return number
