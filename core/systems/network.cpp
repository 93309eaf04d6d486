#include "systems/network.hpp"

namespace teal::systems {

std::unique_ptr<Network> make_network(const ModelFile& file, Isa isa) {
    switch (file.load->id) {
        case LoadId::mllb: return make_mllb(file, isa);
        case LoadId::kml: return make_kml(file, isa);
        default: return nullptr;
    }
}

}  // namespace teal::systems
