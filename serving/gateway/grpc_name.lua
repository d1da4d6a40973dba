-- Reads which model one gRPC request names, so that routes, keys and limits of that model apply.
-- Whatever two readers could read differently is refused.
local NAME, VERSION = 1, 2
local MOST_FIELDS, LONGEST_NAME = 10000, 256
-- Protobuf keeps the low 32 bits of a tag, so a longer one could be a name to it alone.
local TAG_LIMIT = 4294967296
local INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNIMPLEMENTED = "3", "8", "12"

local function refuse(handle, status, why)
  handle:respond({
    [":status"] = "200",
    ["content-type"] = "application/grpc",
    ["grpc-status"] = status,
    ["grpc-message"] = why,
  }, nil)
end

-- The number and the place behind it, or nothing where it does not end within ten bytes.
local function varint(window, at)
  local value, scale = 0, 1
  for i = 0, 9 do
    local byte = window:byte(at + i)
    if byte == nil then return nil end
    value = value + (byte % 128) * scale
    if byte < 128 then return value, at + i + 1 end
    scale = scale * 128
  end
  return nil
end

-- The name and version in the one message of a body, or nothing and the reason.
local function named(body)
  local length = body:length()
  if length < 5 then return nil, "no message" end
  local head = body:getBytes(0, 5)
  if head:byte(1) ~= 0 then return nil, "compressed messages are not accepted" end
  local size = ((head:byte(2) * 256 + head:byte(3)) * 256 + head:byte(4)) * 256 + head:byte(5)
  if size ~= length - 5 then return nil, "not exactly one message" end
  local found, at, fields = {}, 5, 0
  while at < length do
    fields = fields + 1
    if fields > MOST_FIELDS then return nil, "too many fields" end
    local window = body:getBytes(at, math.min(20, length - at))
    local tag, next = varint(window, 1)
    if tag == nil or tag >= TAG_LIMIT then return nil, "malformed message" end
    local kind, field = tag % 8, math.floor(tag / 8)
    if kind == 2 then
      local size_here
      size_here, next = varint(window, next)
      if size_here == nil then return nil, "malformed message" end
      local from = at + next - 1
      if from + size_here > length then return nil, "malformed message" end
      if field == NAME or field == VERSION then
        if found[field] ~= nil then return nil, "names its model or version twice" end
        if size_here > LONGEST_NAME then return nil, "name too long" end
        found[field] = size_here == 0 and "" or body:getBytes(from, size_here)
      end
      at = from + size_here
    elseif field == NAME or field == VERSION then
      return nil, "malformed message"
    elseif kind == 0 then
      local value
      value, next = varint(window, next)
      if value == nil then return nil, "malformed message" end
      at = at + next - 1
    elseif kind == 1 then
      at = at + next - 1 + 8
    elseif kind == 5 then
      at = at + next - 1 + 4
    else
      return nil, "malformed message"
    end
  end
  if at ~= length then return nil, "malformed message" end
  return found
end

function envoy_on_request(handle)
  local headers = handle:headers()
  if headers:get("x-galley-model") ~= nil then
    -- The route so far is one that the client made up.
    headers:remove("x-galley-model")
    handle:clearRouteCache()
  end
  local encoding = headers:get("grpc-encoding")
  if encoding ~= nil and encoding ~= "identity" then
    return refuse(handle, UNIMPLEMENTED, "compressed messages are not accepted")
  end
  local found, why = named(handle:body(true))
  if found == nil then
    return refuse(handle, INVALID_ARGUMENT, why)
  end
  local name = found[NAME] or ""
  if name == "" or name:find("[^%w_.-]") then
    return refuse(handle, INVALID_ARGUMENT, "bad model name")
  end
  -- Anew: what was taken before the wait for the body is not valid any more.
  handle:headers():replace("x-galley-model", name)
  handle:clearRouteCache()
  -- Only now is the route, and with it the limit, that of the model.
  local limit = handle:metadata():get("max_request_bytes")
  if limit ~= nil and handle:body():length() > limit then
    local most = string.format("%d", limit)
    return refuse(handle, RESOURCE_EXHAUSTED, "request is larger than " .. most .. " bytes")
  end
end
