
#include <c10/core/DispatchKey.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/ScalarType.h>
#include <cstdio>
#include <string>
using namespace c10;
using ull = unsigned long long;
static void quoted(const char* text) { std::printf("\"%s\"", text); }
// A key of a table slot, no marker and no functionality that needs a backend.
static bool isReal(int k) {
  auto key = (DispatchKey)k;
  return k == 0 || (k < (int)DispatchKey::EndOfFunctionalityKeys && !isPerBackendFunctionalityKey(key)) ||
      (k > (int)DispatchKey::EndOfFunctionalityKeys && toBackendComponent(key) != BackendComponent::InvalidBit);
}
// Until 2.6 getRuntimeDispatchKeySet forgets FuncTorchBatchedDecomposition, which runtimeDispatchKeySetHas knows.
static ull runtimeKeys(DispatchKey alias, int last_runtime) {
  auto bits = (ull)getRuntimeDispatchKeySet(alias).raw_repr();
  if (bits) return bits;
  for (int k = 1; k <= last_runtime; k++) {
    auto key = (DispatchKey)k;
    if (isReal(k) && runtimeDispatchKeySetHas(alias, key)) bits |= (ull)DispatchKeySet(key).raw_repr();
  }
  return bits;
}
int main() {
  const int last_runtime = (int)DispatchKey::EndOfRuntimeBackendKeys;
  const int last = (int)DispatchKey::EndOfAliasKeys;
  std::printf("{\"key_names\": [");
  for (int k = 0; k <= last; k++) { if (k) std::printf(", "); quoted(toString((DispatchKey)k)); }
  std::printf("], \"backend_names\": [");
  const int last_backend = (int)BackendComponent::EndOfBackendKeys;
  for (int b = 0; b <= last_backend; b++) { if (b) std::printf(", "); quoted(toString((BackendComponent)b)); }
  std::printf("], \"offsets_and_masks\": [");
  auto table = initializeFunctionalityOffsetsAndMasks();
  for (size_t i = 0; i < table.size(); i++)
    std::printf("%s[%u, %u]", i ? ", " : "", (unsigned)table[i].offset, (unsigned)table[i].mask);
  std::printf("], \"table_index\": [");
  for (int k = 0; k <= last_runtime; k++) {
    int index = isReal(k) ? (int)getDispatchTableIndexForDispatchKey((DispatchKey)k) : -1;
    std::printf("%s%d", k ? ", " : "", index);
  }
  std::printf("], \"runtime_keysets\": {");
  for (int k = last_runtime + 1; k <= last; k++) {
    auto key = (DispatchKey)k;
    std::printf("%s\"%s\": %llu", k > last_runtime + 1 ? ", " : "", toString(key), runtimeKeys(key, last_runtime));
  }
  std::printf("}, \"backend_keys\": [");
  bool first = true;
  for (int k = 0; k <= last_runtime; k++) {
    if (isBackendDispatchKey((DispatchKey)k)) { std::printf("%s%d", first ? "" : ", ", k); first = false; }
  }
  std::printf("], \"backends_of_autograd\": {");
  first = true;
  for (int k = 0; k <= last_runtime; k++) {
    auto bits = getBackendKeySetFromAutograd((DispatchKey)k).raw_repr();
    if (bits) { std::printf("%s\"%d\": %llu", first ? "" : ", ", k, (ull)bits); first = false; }
  }
  std::printf("}, \"autograd_of_backend\": [");
  for (int b = 1; b <= last_backend; b++)
    std::printf("%s%llu", b > 1 ? ", " : "", (ull)getAutogradRelatedKeySetFromBackend((BackendComponent)b).raw_repr());
  std::printf("], \"autocast_of_backend\": [");
  for (int b = 1; b <= last_backend; b++)
    std::printf("%s%llu", b > 1 ? ", " : "", (ull)getAutocastRelatedKeySetFromBackend((BackendComponent)b).raw_repr());
  std::printf("], \"scalar_types\": [");
  for (int t = 0; t < (int)ScalarType::NumOptions; t++) {
    auto type = (ScalarType)t;
    int size = type == ScalarType::Undefined ? 0 : (int)elementSize(type);
    std::printf("%s[\"%s\", %d]", t ? ", " : "", toString(type), size);
  }
  std::printf("]}\n");
}
